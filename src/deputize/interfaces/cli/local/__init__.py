"""Read the project folder: settings, tools, policies, the local database."""
