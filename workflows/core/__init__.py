"""What all of Rankline uses: errors, progress, plug-ins, checks of values, and wording of messages."""
