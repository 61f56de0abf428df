"""The stateful operator: logic, timers, and bins on their way in."""
