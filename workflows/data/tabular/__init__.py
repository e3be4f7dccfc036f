"""Tables of any shape: files of rows whose columns a `TableConfig` describes, which is the data half of a recipe file.

config      what is said about files, columns and labels
files       the files, in batches of rows
typed       the columns of a batch as they are trained on and sent
dataset     the `Dataset`: reader and graph
profile     what `init` finds out about files it knows nothing about
guess       what it makes of that: types, roles, labels, likely leaks
"""
