"""What proofs share: real processes, proxies that kill at an exact point, a load client, a report."""
