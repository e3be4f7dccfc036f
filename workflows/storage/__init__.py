"""File storage, including artifacts with manifests, atomic publishing, safe YAML parsing and downloads."""
