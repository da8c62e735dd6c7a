"""Clock and files as replaceable interfaces; rate-limited logging; search for Java and extras."""
