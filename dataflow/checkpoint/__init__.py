"""Checkpoints: all of a running flow as of one cut, and how a flow starts from one.

`checkpoint_coordinator` is the coordinator's part and `snapshot` the protocol between workers.
`writer` and `state_writer` write a worker's part. `restore_plan` assigns a checkpoint to workers;
`state_restore` and `in_flight_restore` bring it back.
"""
