"""What people see: tables and texts. Data in, renderables out; figures are formatted here and computed elsewhere."""
