"""What an operator sees and changes of one machine: settings, installations, training scripts."""
