"""Where the report keeps data: `storage` on any file system, and `temporary` in local directories for one run."""
