"""Tables of any schema: files of rows whose columns a `TableConfig` describes, the data half of a recipe file.

config         configuration of files, columns and labels
files          reading files in batches of rows
csv_dialect    detection of encoding, delimiter and header
csv_text       CSV headers and faulty lines
cast           casts of columns to the types used in training and requests
reader         rows for training and requests
dataset        the `Dataset`: reader and graph
"""
