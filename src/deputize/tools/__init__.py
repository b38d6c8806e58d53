"""Tools that come with the gateway, written with what every tool author has.

Each is off until the settings name what it may reach: a folder for `files`, a repository for `git`, commands for
`build`, hosts for `web`.
"""
