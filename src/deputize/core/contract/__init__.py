"""Define tool contracts: what is declared about one version of a tool."""
