"""Checkpoints: all of a running flow as of one cut, and how a flow goes on from there.

`freezing` is the protocol between workers, `persisting` what one of them writes, `taking` the
coordinator's part; `start` says who begins with what, `resuming` puts records in flight back.
"""
