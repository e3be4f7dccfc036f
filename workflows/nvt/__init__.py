"""NVTabular 23.8 as used by Rankline: imported without warnings, extended with operators, and loaded without running
code.
"""
