"""What replicas of one partition decide: pure machines, no clock, no network. A leader alone runs on them today."""
