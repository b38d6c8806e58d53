"""Define `deputize observe`: record what agents do before anything is enforced, report it, and begin to enforce."""
