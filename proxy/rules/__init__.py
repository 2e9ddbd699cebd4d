"""Rules files and settings: YAML to checked, compiled rules. Owner of yaml."""
