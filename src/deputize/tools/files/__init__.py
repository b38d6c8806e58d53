"""Read and change the files of one folder, and nothing outside of it: `[builtin.files]`."""
