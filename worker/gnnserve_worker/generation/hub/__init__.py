"""Files of the Hugging Face Hub that manifests name: fetched once, verified, and then files as others are."""
