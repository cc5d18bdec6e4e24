"""Lab 8, operations: pictures, clients and measurements that the notebook imports."""
