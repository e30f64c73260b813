"""What happened: the frames of a run in memory, and the HDF5 file that they are written to and read from.

The file. HDF5 makes all its structure before the run, under another name, with room for every row. From then on HDF5
has no part in the writing: each frame's numbers are written to where they stand, by plain writes. So the structure
cannot break, and HDF5 has nothing left to write when a disk is full or a process ends: a run killed at any moment
leaves a file that any HDF5 reader opens, with everything written so far. Rows not reached are NaN in `/time`, -1 in
`/step`; `Trajectory.load` leaves them out. The last full state stands twice, in `/state` and `/state/backup`, and is
written to one after the other: one of them is whole at any moment (`step` is -1 in the one that is being written).
(A kill of the process is meant. What the machine keeps when its power fails is up to the file system.)

Checksums. Each row of each dataset, each copy of the state and all that stays the same have a CRC-32 in the file, and
`Trajectory.load` compares them. HDF5's own filter (Fletcher-32) is no choice here: it needs chunks, which cannot be
mapped into memory, and a chunk that a kill tears cannot be read by anyone. HDF5 checks its structure by itself.

A file of chains of rigid elements has their joints, positions and velocities in `/state` instead of the frames of rods.

One writer. Whoever writes a file says so in an owner mark beside it, and a second writer is refused (`owner`).
"""

from torchdismech.trajectory.frames import Frame, Recorder, Trajectory
from torchdismech.trajectory.owner import OwnerMark
from torchdismech.trajectory.writer import TrajectoryWriter

__all__ = ["Frame", "OwnerMark", "Recorder", "Trajectory", "TrajectoryWriter"]
