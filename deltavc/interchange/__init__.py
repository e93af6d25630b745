"""Other people's checkpoints, in and out, and whole histories from repository to repository.

found           checkpoints at paths: a Trainer's output folder, DCP directories, files that a glob finds
trainer_log     what a Trainer logged at a step
dcp             directories of torch.distributed.checkpoint; dcp_metadata: their pickle, read as data
importing       checkpoints, in order, as versions of a branch
payload         a tensor's change as Miles and slime write it: XOR or overwrite, zstd, checksums
delta_dir       their delta directories, read and written
import_deltas   such a directory as versions
export_deltas   two versions as such a directory
export          a version as a Hugging Face directory
copying         histories from one repository to another; missing: what the other one lacks; carrying: objects on their
                way
"""
