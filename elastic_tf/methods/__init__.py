"""What elastic training is compared with: papers and simple rules; few-shot learning."""
