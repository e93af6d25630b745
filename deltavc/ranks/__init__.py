"""Ranks: processes of a `torch.distributed` group whose calls succeed on all of them or fail on all.

meeting    how they find each other
council    how they decide on every step of a call, by one key of a Store, whoever dies
exchange   sums and messages between them, on connections of their own
holdings   who holds which boxes of a version's tensors, and how that adds up
"""
