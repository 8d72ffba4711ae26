"""What adaptation gains and costs, on streams of prompts and on simulated ones."""
