"""What all of the application uses: clock, signals, output."""
