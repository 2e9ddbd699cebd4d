"""What runs the sidecar: on this machine (``local``), and the files for other places."""
