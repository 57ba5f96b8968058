"""What runs in the process of a scheduler that jobs share: reports, jobs, demand, departures."""
