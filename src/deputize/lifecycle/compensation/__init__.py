"""Judge how the effect of an earlier call can be taken back now, for whoever takes it back."""
