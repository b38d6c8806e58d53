"""The house's own rules, shown to catch what they are for."""
