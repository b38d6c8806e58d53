"""Write audit entries and read stored calls back."""
