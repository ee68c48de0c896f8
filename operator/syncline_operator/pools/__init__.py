"""What becomes of a RolloutPool: from what was seen of it to what is to be written. Pure: asks no server and no clock."""
