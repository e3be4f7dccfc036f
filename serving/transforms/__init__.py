"""Serving transforms of raw columns: compiled plans, or workflows that run through NVTabular."""
