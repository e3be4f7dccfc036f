"""Configs, parameters and checksums shared by the exporter and the Triton backends."""
