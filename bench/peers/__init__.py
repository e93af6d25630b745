"""What deltavc is compared with.

schemes   ways to write one step of a model as bytes: encode, decode, apply
stores    ways to keep a whole run: commit step after step, get any step back
commands  programs among both (zstd, restic), which are left out where they are not installed
"""
