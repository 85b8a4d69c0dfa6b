"""When schedules fire: cron and intervals, what is to be made of what was missed, and schedules as they are put in force."""
