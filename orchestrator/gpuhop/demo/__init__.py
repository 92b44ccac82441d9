"""The demo: a real training over the lab's platforms, then the same job unbroken, then the comparison."""
