"""Administrative acts: what changes authority, committed under the tenant's barrier together with its audit entry."""
