"""What is fitted: robots from scenes or between markers, with trained constants and learned terms."""
