"""Files: artifacts with manifests, atomic publishing, safe YAML, downloads."""
