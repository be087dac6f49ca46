"""The kernel's network configuration: watching it (`watch`), our routes (`routes`), our labels (`labels`)."""
