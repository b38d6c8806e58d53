"""Run a browser in a sandbox for the tools `browser.*`: its process, the proxy that is its way out, its sessions."""
