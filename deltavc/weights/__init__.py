"""Model files and live states, in and out.

state       whatever holds tensors (a mapping, a module, pairs, a path) as lanes to commit
files       checkpoints on disk, opened without loading
output      checkpoints written to disk, laid out like the one they came from
tensorfile  one .safetensors file
pickled     one .pt file, never executed
extras      the other files of a checkpoint's directory, and which file names are fit to write
describe    tensors to a layout, ties found
"""
