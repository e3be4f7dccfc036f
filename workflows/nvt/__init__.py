"""NVTabular 23.8 as Rankline uses it: imported without warnings, extended with operators, and able to load workflows
without running their code.
"""
