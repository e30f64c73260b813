"""Trajectories: the frames of a run in memory, and the HDF5 file that they are written to and read from.

The file. HDF5 creates the whole structure before the run, under another name, with room for every row. From then on
HDF5 takes no part in writing: each frame's numbers are written at their offsets in the file, by plain writes. So the
structure cannot break, and HDF5 has nothing left to write when a disk is full or a process ends: a run killed at any
moment leaves a file that any HDF5 reader opens, with everything written so far. Rows that were not reached are NaN in
`/time` and -1 in `/step`; `Trajectory.load` leaves them out. The last full state is stored twice, in `/state` and
`/state/backup`, which are written one after the other: at any moment one of them is complete (`step` is -1 in the one
that is being written). (This holds if the process is killed. What survives a power failure depends on the file system.)

Checksums. Each row of each dataset, each copy of the state and all data that do not change have a CRC-32 in the file,
and `Trajectory.load` compares them. HDF5's own checksum filter (Fletcher-32) cannot be used: it needs chunks, which
cannot be mapped into memory, and a chunk that was being written at a kill cannot be read at all. HDF5 checks its
structure by itself.

A file of chains of rigid elements has their joints, positions and velocities in `/state` instead of the frames of rods.

One writer. Each writer of a file holds an owner mark beside it, and a second writer is refused (`owner`).
"""

from torchdismech.trajectory.frames import Frame, Recorder, Trajectory
from torchdismech.trajectory.owner import OwnerMark
from torchdismech.trajectory.writer import TrajectoryWriter

__all__ = ["Frame", "OwnerMark", "Recorder", "Trajectory", "TrajectoryWriter"]
