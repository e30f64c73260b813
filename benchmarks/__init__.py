"""What a step costs, beside what a user would otherwise pick."""
