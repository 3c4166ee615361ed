"""The processes in which the reference or the candidate runs. Only here is torch imported."""

import warnings

# torch works without NumPy here, and says so when it is imported. Every worker passes this line before that,
# whichever module it starts with: the remark would head every report's and every profile's output.
warnings.filterwarnings("ignore", message="Failed to initialize NumPy", category=UserWarning)
