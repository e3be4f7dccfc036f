"""Configs, parameters, checksums and transforms shared by the exporter and the Triton backends."""
