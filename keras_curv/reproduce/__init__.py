"""The paper's tables and figures again: ours beside the paper's, with the command behind each."""
