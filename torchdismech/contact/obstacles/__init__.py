"""What robots may touch beside themselves: shapes, how they move, and the points that touch them."""
