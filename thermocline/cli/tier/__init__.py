"""`thermocline tier`: shows the part of each log in the bucket, obstacles to copying, and retention; copies logs on
request.
"""
